"""OpenAPI document of the HTTP interface, made from the request schemas and from the routes."""
