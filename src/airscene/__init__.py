"""airscene takes an image apart into its objects, without labels."""
__version__ = "0.1.0"
