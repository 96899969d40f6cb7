"""A comparison for people: a table of one screen (terminal.py), a page for a browser (sections.py).

The page needs the packages of the extra `compare`: matplotlib and jinja2.
"""
