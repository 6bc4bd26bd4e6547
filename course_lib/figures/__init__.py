"""Every static picture: plain data in, a matplotlib Figure out. One file a subject; `style` holds the look."""
