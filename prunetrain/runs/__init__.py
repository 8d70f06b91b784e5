"""A run on disk and on the screen: the work directory and the progress display."""
