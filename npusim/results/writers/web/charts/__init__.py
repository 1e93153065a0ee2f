"""Interactive charts of web pages; the only package that imports Bokeh.

Colours of axes and of text follow the page: models tagged "axis", "grid", "text" and "stroke" are
painted by its script, in the light and in the dark.
"""
