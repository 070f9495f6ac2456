"""The demo: a page to draw on, and the small HTTP server behind it.

requests.py  the models that are served, and the images and values that requests bring
server.py  routes, limits, headers
schema.py  the API's description (OpenAPI 3.1)
page/      the page itself: plain HTML, CSS and JavaScript, nothing from elsewhere
"""
