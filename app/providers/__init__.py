"""Model providers: each turns one model call into a blocking iterator of chunks. Knows nothing of turns or tools."""
