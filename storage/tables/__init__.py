"""What is small and changes: settings, progress, what is in flight, what is staged."""
