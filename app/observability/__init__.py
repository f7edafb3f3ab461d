"""What an operator can see of a running service: its log lines, its figures and its spans."""
