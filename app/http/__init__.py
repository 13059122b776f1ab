"""HTTP and WebSocket connections: protocol classes of uvicorn, limits, middleware, static files."""
