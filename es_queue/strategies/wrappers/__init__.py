"""Classes that add something to any strategy whose slots are all alike."""
