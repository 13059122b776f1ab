"""JSON Schemas: their normal form, and the grammar of the JSON texts that satisfy one."""
