"""Small networks, attention windows and distributions that every kind of model is made of."""
