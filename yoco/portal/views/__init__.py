"""Views of the customer's pages: they find what was asked for, call selectors and services, and render."""
