"""What keeps one turn from taking too long or too much: the time ladder, deadlines, retries, threads and cancelling."""
