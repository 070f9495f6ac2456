"""What people look at: figures, reports, tables, films, progress."""
