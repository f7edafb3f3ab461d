"""The edge: HTTP in, problems and frames out. Routes are thin; what a turn is lives in `app.turns`."""
