"""The routes, thin: read the request, ask `app.turns`, shape the answer."""
