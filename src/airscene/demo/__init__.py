"""The demo: a page to draw on, and the small HTTP server behind it.

requests.py  loads the models to serve; decodes the images and values in requests
server.py    routes, limits, headers
schema.py    description of the API (OpenAPI 3.1)
page/        the page: plain HTML, CSS and JavaScript, without external resources
"""
