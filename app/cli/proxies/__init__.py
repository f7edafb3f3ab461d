"""Reading the files of what stands around the service, and holding them to the time ladder."""
