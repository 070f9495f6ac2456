"""Building blocks of every kind of model: small networks, attention windows, distributions."""
