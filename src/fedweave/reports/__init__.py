"""What people read of a run: tables, pages and figures, for the terminal, a browser and Python."""
