"""What people start: the command, the page, the demo."""
