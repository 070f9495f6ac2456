"""The commands, a module each: thin functions from words to an exit status.

Imports that take time happen inside them, so that `--help` comes at once.
"""
