"""What a batch costs and yields, in torch. Knows nothing of why a batch was chosen."""
