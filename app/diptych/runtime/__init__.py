"""What makes runs happen: admission, scheduling, execution, and subscriptions to them."""
