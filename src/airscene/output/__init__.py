"""Human-readable output: figures, reports, tables, films and progress."""
