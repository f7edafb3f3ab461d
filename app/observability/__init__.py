"""What an operator can see of a running service: its log lines and its figures."""
