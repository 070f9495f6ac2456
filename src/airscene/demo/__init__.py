"""The demo: a page to draw on, and the small HTTP server behind it.

models.py  what the server says about each model's images and scenes
server.py  routes, limits, headers
schema.py  the API's description (OpenAPI 3.1)
page/      the page itself: plain HTML, CSS and JavaScript, nothing from elsewhere
"""
