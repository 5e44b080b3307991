"""The style of all gnuplot figures: a palette for colour-blind readers, and a white background, so that text is also
legible on a dark page."""
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31")


def head(kind, width, height, title):
    """Returns the first commands of a gnuplot script. `title` is a quoted string."""
    background = "background '#ffffff'" if kind == "svg" else "background rgb '#ffffff'"
    return [f"set terminal {kind} noenhanced size {width},{height} font 'sans,13' {background}", "set encoding utf8",
            *(f"set linetype {i} lc rgb '{colour}'" for i, colour in enumerate(PALETTE, 1)),
            "set border 3 lc rgb '#57606a'", "set tics nomirror", "set grid y lc rgb '#d0d7de' lt 1 lw 0.5",
            "set key top center outside horizontal samplen 1.5", f"set title {title} noenhanced"]
