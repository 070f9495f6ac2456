"""Files: atomic writing, weights, images of unknown origin, and what models see of them."""
