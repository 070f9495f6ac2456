"""Files: atomic writing, weights, untrusted images, and their conversion to model input."""
