r"""The style of an answer: colors, sizes, fonts, spaces, doubled backslashes. Text only, linear in its length.

    undressed:  \large{\color{blue}42}\,,   -> 42          style without a value is removed
    unknown:    \mystyle{42}                -> \mystyle     an unknown command may be style or mathematics

An answer with an unknown command is undecided unless its text equals the gold's: it may be right.
"""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMMAND = re.compile(r"\\([a-zA-Z]+)\*?")
# Commands without an argument for size and font of the rest.
_IDLE = _words(
    "tiny scriptsize footnotesize small normalsize large Large LARGE huge Huge displaystyle textstyle scriptstyle "
    "scriptscriptstyle bf it sl sc tt em bfseries itshape slshape scshape ttfamily sffamily rmfamily mdseries upshape "
    "normalfont boldmath unboldmath limits nolimits strut mathstrut nobreak allowbreak noindent centering hfill protect "
    "relax bigl bigr bigm Bigl Bigr Bigm biggl biggr biggm Biggl Biggr Biggm big Big bigg Bigg middle null nonumber notag "
    "rm sf cal"
)
_SPACES = _words("quad qquad enspace enskip thinspace medspace thickspace negthinspace space nobreakspace")
# Commands with arguments -> how many of them are dropped. The remaining arguments are the answer.
_DROPPED = {
    "color": 1, "hspace": 1, "vspace": 1, "phantom": 1, "hphantom": 1, "vphantom": 1, "label": 1, "tag": 1, "textcolor": 1,
    "mathcolor": 1, "colorbox": 1, "fcolorbox": 2, "raisebox": 1, "scalebox": 1, "bbox": 0, "class": 1, "style": 1, "cssId": 1,
}  # fmt: skip
_SPACING = _words("hspace vspace phantom hphantom vphantom label tag")
_KEPT = _words(
    "boldsymbol bm pmb underline uline emph ensuremath smash mathstrut mathord textcolor mathcolor colorbox fcolorbox "
    "raisebox scalebox bbox class style cssId hbox"
)
_FONTS = _words("text textbf textit textrm textnormal textsf texttt mathbf mathrm mathit mathsf mathtt mbox bold")
_OF_WORDS = "|".join(sorted(_words("text textbf textit textrm textnormal textsc mathrm mathbf mathit mathsf mbox operatorname")))
_NESTED = re.compile(rf"\\(?:{_OF_WORDS})\s*\{{")
_FONT = re.compile(rf"\\(?:{_OF_WORDS})\s*\{{[^{{}}]*\}}")
_LOCAL_FONT = re.compile(r"\{\s*\\(?:rm|sf|tt)(?![a-zA-Z])\s*([^{}]*)\}")
_UNIT = r"\\(?:text|textrm|mathrm|mbox)\s*\{\s*([A-Za-z]{1,12})\s*\}"
_UNIT_RATIO = re.compile(rf"\\[dt]?frac\s*\{{\s*{_UNIT}\s*\}}\s*\{{\s*{_UNIT}\s*\}}")
_OF_UNITS = _words("cdot circ degree mu Omega")
_ALIGNED = re.compile(
    r"\\begin\s*\{((?:aligned|align|gathered|gather|split|equation|center|displaymath|math)\*?)\}(.*?)\\end\s*\{\1\}", re.DOTALL
)
_ENVIRONMENT = re.compile(r"\\begin\s*\{(?![bpvVB]?(?:small)?matrix\}|array\}|cases\})[^{}]*\}")
_BRACKETS = {
    "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "lvert": "|", "rvert": "|",
    "lVert": r"\|", "rVert": r"\|",
}  # fmt: skip
LONGEST = 2_000  # characters of an answer whose style is removed; longer ones are not compared
_LEADING = re.compile(r"\A(?:\\[,;:! ]|~|\s)+")
_SPACE = re.compile(r"\s*")
_OPTION = re.compile(r"\s*\[[^\[\]]*\]")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_ORNAMENTS = "✓✔✅☑∎■□▪🎉"
_DRESSED = re.compile(rf"\\|[,;~\s.{_ORNAMENTS}]\Z|\A\{{")
_ORNAMENT = re.compile(
    rf"(?<=\S)(?:\\[,;:! ]|\\q?quad(?![a-z])|[~\s])*(?:\\(?:checkmark|blacksquare|square|Box|qed|QED|qedsymbol)(?![a-zA-Z])"
    rf"|[{_ORNAMENTS}]|\\text\s*\{{\s*[{_ORNAMENTS}]\s*\}})\Z"
)
_INFIX = {r"\choose": r"\binom", r"\over": r"\frac"}
_INFIX_COMMAND = re.compile(r"(\\choose|\\over)(?![a-zA-Z])")
# Commands of mathematics, in this package and in the parser.
_MATHEMATICS = _words(
    "frac dfrac tfrac cfrac nicefrac sfrac xfrac sqrt root binom dbinom tbinom choose times cdot div pm mp ast star circ "
    "bullet degree pi infty e sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech "
    "csch arsinh arcosh artanh arcsinh arccosh arctanh ln log lg exp min max gcd lcm det dim deg ker arg inf sup lim sum "
    "prod int iint iiint oint partial nabla mod bmod pmod equiv approx sim simeq cong doteq propto leq le geq ge neq ne lt "
    "gt leqslant geqslant ll gg nleq ngeq not in notin ni subset subseteq supset supseteq cup cap bigcup bigcap setminus "
    "smallsetminus emptyset varnothing mathbb mathbf mathrm mathcal mathit mathsf mathfrak text textbf textit textrm "
    "textnormal textsc mbox operatorname left right langle rangle lfloor rfloor lceil rceil vert Vert mid colon dots ldots "
    "cdots vdots ddots overline bar dot ddot hat tilde vec widehat overrightarrow begin end land lor wedge vee lnot neg forall "
    "exists to rightarrow leftarrow Rightarrow implies iff mapsto perp parallel angle triangle measuredangle square prime "
    "backslash boxed fbox dollar cents cent euro pounds hbar ell Re Im alpha beta gamma delta epsilon varepsilon zeta eta "
    "theta vartheta iota kappa lambda mu nu xi omicron rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Gamma "
    "Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega odot oplus otimes textdegree celsius permil Pr hline overset "
    "underset stackrel complement overbrace underbrace norm abs bigtriangleup mathop operatornamewithlimits over atop "
    "substack displaylimits lvert rvert lVert rVert"
)

# Golds that lost their spaces have \pic for \pi c, and the parser reads it so.
_GREEK = tuple(sorted(_words(
    "alpha beta gamma delta epsilon varepsilon theta kappa lambda sigma omega varphi phi psi rho tau eta zeta chi mu nu xi pi "
    "Gamma Delta Theta Lambda Sigma Omega Phi Psi Xi Pi"
)))  # fmt: skip


def undressed(text: str) -> str:
    r"""An answer without commands that change no value: `\color{red}`, `\large`, `\Big`, `\boldsymbol{}`, `\quad`, a comma at
    the end."""
    if len(text) > LONGEST or not _DRESSED.search(text):
        return text
    text = _unwrapped(text)
    if "\\" in text:
        text = _ALIGNED.sub(lambda match: match[2] if r"\begin" in match[2] else match[2].replace("&", " "), text)
        text = _UNIT_RATIO.sub(r"\\text{ \1/\2}", _LOCAL_FONT.sub(r"\\text{\1}", text))
        text = _flat(_plainer(text))
        text = re.sub(r"(?<![\\\d])\\ |(?<!\\)\\ (?!\d)", " ", text)
    return _prefixed(_unwrapped(_without_end(_LEADING.sub("", text))))


def _prefixed(text: str) -> str:
    r"""`5 \choose 2` as `\binom{5}{2}`, `1+2 \over 3` as `\frac{1+2}{3}`: in TeX both apply to the full group that they are in."""
    places = [command for command in _INFIX_COMMAND.finditer(text) if _depth(text[: command.start()]) == 0]
    if len(places) != 1 or "=" in text:
        return text
    over, under = text[: places[0].start()].strip(), text[places[0].end() :].strip()
    return rf"{_INFIX[places[0][1]]}{{{over}}}{{{under}}}" if over and under else text


def _depth(text: str) -> int:
    """Count the braces that are open at the end of a text."""
    return sum((brace[0] == "{") - (brace[0] == "}") for brace in _BRACE.finditer(text))


def _unwrapped(text: str) -> str:
    r"""The contents of `{...}`, or mathematics in `\text{...}`, if that is the full text; otherwise the text."""
    text = text.strip()
    while True:
        font = _NESTED.match(text)
        at = font.end() - 1 if font else 0
        if text[at : at + 1] != "{" or group_end(text, at) != len(text):
            return text
        inner = text[at + 1 : -1].strip()
        if font is not None and (not inner or (re.search("[A-Za-z]", inner) and "^" not in inner)):
            return text
        text = inner


def _without_end(text: str) -> str:
    r"""A text without commas, semicolons, spaces, a line break, a full stop or an ornament at its end; `\right.` and `...` stay."""
    before = None
    while text != before:
        before, text = text, text.rstrip(" ~,;")
        text = _ORNAMENT.sub("", text)
        slashes = len(text) - len(text.rstrip("\\"))
        if slashes % 2:
            text = text[:-1]  # of `\,` and of `\ `
        elif slashes:
            text = text[:-slashes]
        elif text.endswith((r"\:", r"\!", r"\>", r"\/")):
            text = text[:-2]
        elif text.endswith(".") and not text.endswith(("..", r"\right.", r"\left.")):
            text = text[:-1]
    return text


def halved(text: str) -> str:
    r"""A text with single backslashes if all are doubled, as JSON and over-escaped prompts write them.

    Every run of backslashes must be of even length, and a command or a bracket must follow one: `1 \\ 2` is unchanged.
    """
    if len(text) > LONGEST or r"\\" not in text or not re.search(r"\\\\[a-zA-Z{}(\[$%!]", text):
        return text
    runs = re.findall(r"\\+", text)
    return re.sub(r"\\+", lambda run: "\\" * (len(run[0]) // 2), text) if all(len(run) % 2 == 0 for run in runs) else text


def group_end(text: str, at: int) -> int:
    """The end of the group in braces that opens at `at` (after its brace); `at` if none opens, or none closes."""
    if text[at : at + 1] != "{":
        return at
    depth = 0
    for brace in _BRACE.finditer(text, at):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0:
            return brace.end()
    return at


def _arguments(text: str, at: int, count: int) -> tuple[int, str]:
    """(the place after `count` arguments that start at `at`, the last of them); an option in square brackets belongs to the
    first."""
    inner = ""
    option = _OPTION.match(text, at)
    at = option.end() if option and count else at
    for _ in range(count):
        start = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        end = group_end(text, start)
        if end == start:
            return at, inner
        at, inner = end, text[start + 1 : end - 1]
    return at, inner


def _plainer(text: str) -> str:
    """A text without the commands of style, and without their arguments that are not part of the answer."""
    made: list[str] = []
    at = 0
    while command := _COMMAND.search(text, at):
        name, start = command[1], command.start()
        before = text[at:start]
        made.append(before)
        at = command.end()
        if start and text[start - 1] == "\\" and (len(before) - len(before.rstrip("\\"))) % 2:
            made.append(command[0])  # a row that ends, \\, not a command
        elif name in _DROPPED or name in _KEPT:
            at, _ = _arguments(text, at, _DROPPED.get(name, 0))
            end, inner = _arguments(text, at, 1) if name in _KEPT else (at, "")
            if end > at:
                content = _plainer(inner)
                bound = "".join(made).rstrip()[-1:]
                joined = bound in ("^", "_") or re.search(r"\\[a-zA-Z]+\s*\Z", "".join(made)) is not None
                made.append(f"{{{content}}}" if joined else content)
                at = end
            elif name in _SPACING:
                made.append(" ")
        elif name in _FONTS:
            end, inner = _arguments(text, at, 1)
            if end > at and _is_mathematics(name, inner):
                made.append(_plainer(inner))
                at = end
            else:
                made.append(command[0])
        elif name in _IDLE or name in _SPACES:
            made.append(" ")
        else:
            made.append(_BRACKETS.get(name, command[0]))
    made.append(text[at:])
    return "".join(made)


def _is_mathematics(font: str, inner: str) -> bool:
    r"""Whether the contents of `\text{}`, `\mathbf{}` and the like are mathematics and not words: they are read without the
    font."""
    commands = {match[1] for match in _COMMAND.finditer(inner)}
    if commands & _MATHEMATICS - _FONTS - _OF_UNITS:
        return True
    if commands & _FONTS:  # fonts within each other: the inner one has the words
        return not re.search("[A-Za-z]", _FONT.sub("", inner))
    if font in ("text", "mbox", "mathrm", "textrm", "textnormal", "mathit", "textit", "mathsf", "textsf"):
        return re.search("[=+]", inner) is not None and re.search("[A-Za-z]{3}", inner) is None
    return not re.search("[A-Za-z]", inner) or re.search(r"[\^_+=/]", inner) is not None


def _flat(text: str) -> str:
    r"""A text whose units have no braces inside: `\mathrm{J\,K^{-1}}` -> `\mathrm{J\,K^-1}`."""
    made, at = [], 0
    while match := _NESTED.search(text, at):
        end = group_end(text, match.end() - 1)
        if end == match.end() - 1:
            made.append(text[at : match.end()])
            at = match.end()
            continue
        inner = text[match.end() : end - 1]
        made += [text[at : match.end()], re.sub(r"(?<![\\a-zA-Z])\{([^{}]*)\}", r"\1", inner) if "{" in inner else inner, "}"]
        at = end
    return "".join([*made, text[at:]])


def unknown(text: str) -> str:
    r"""The first command that is neither style nor mathematics in this package; "" if there is none."""
    if "\\" not in text:
        return ""
    if strange := _ENVIRONMENT.search(text):
        return strange[0]
    commands = re.findall(r"(?:\\\\)|\\([a-zA-Z]+)", text)
    known = (_MATHEMATICS, _IDLE, _SPACES, _FONTS, _KEPT, _DROPPED, _BRACKETS)
    others = (name for name in commands if name and not any(name in names for names in known))
    return next(("\\" + name for name in others if not name.startswith(_GREEK)), "")


__all__ = ["group_end", "halved", "undressed", "unknown"]
