"""What one step computes: ops on named values, with symbolic shapes and costs. Plain data, no weights, no backend."""
