"""What the service is compared with, each a program of its own."""
