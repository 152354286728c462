"""What people look at, made from records: metrics, times on a link, tables, figures, reports."""
