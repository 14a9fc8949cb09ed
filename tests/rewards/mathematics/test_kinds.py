"""Answers of every kind with their twins: what is right, what is nearly right, and that golds equal themselves.

Columns: answer | gold | R right, W wrong, F the grader fails.
"""

from __future__ import annotations

import pytest

from rlready import Verdict
from rlready.rewards import verify_math

_VERDICTS = {"R": Verdict.RIGHT, "W": Verdict.WRONG, "F": Verdict.GRADER_FAILED}
_TABLE = r"""
1/2 | 0.5 | R
\frac{2}{4} | \frac12 | R
0.333 | \frac13 | W
\frac{-3}{4} | -0.75 | R
-\frac{3}{-4} | 3/4 | R
1\frac{1}{2} | 3/2 | R
1 1/2 | 1.5 | R
11/2 | 1 1/2 | W
1\frac{1}{2} | \frac12 | W
-1\frac{1}{2} | -1.5 | R
2\frac{3}{2} | 3 | R
½ | 0.5 | R
2½ | 2.5 | R
0.\overline{3} | \frac{1}{3} | R
0.1\overline{6} | 1/6 | R
0.3 | 0.\overline{3} | W
1,234,567 | 1234567 | R
1{,}000 | 1000 | R
1,\!000 | 1000 | R
10\,000 | 10000 | R
3{,}14 | 3.14 | R
12,34 | 1234 | W
1,234 | 1.234 | W
100, 200 | 100,200 | R
200, 100 | 100,200 | W
1e3 | 1000 | R
2.5 \times 10^{-3} | 0.0025 | R
2.5 x 10^-3 | 0.0025 | R
2.5 \cdot 10^{3} | 0.0025 | W
$5 | 5 | R
\$5.00 | 5 | R
\$1,250.50 | 1250.5 | R
€5 | 5 | R
\$5 | 5 \text{ cents} | W
\$5 | 500 cents | R
50 cents | \$0.50 | R
5 dollars | \$5 | R
-\$5 | -5 | R
4 million | 4000000 | R
4 million | 4 | W
50\% | 50\% | R
50% | 0.5 | R
50% | 50 | R
0.5% | 50% | W
0.5 | 50\% | R
5 | 50\% | W
42 percent | 42% | R
18 cm | 18 | R
18 | 18\text{ cm} | R
18 m | 18 cm | W
0.18 m | 18 cm | R
18 \mathrm{~cm} | 18 cm | R
18\,\text{cm}^2 | 18 | R
18 cm^2 | 18 cm | W
18 \text{ square centimeters} | 18 cm^2 | R
60 km/h | 60 | R
5\text{ m/s} | 18 km/h | R
5 m/s | 5 \text{ m/s} | R
5 apples | 5 | R
5 apples | 5 oranges | W
5 apples | 6 apples | W
5 units | 5 cm | R
90^\circ | 90 | R
90° | \frac{\pi}{2} | R
90^{\circ} | \pi | W
90 degrees | 90^\circ | R
20^\circ C | 20 °C | R
20^\circ C | 20^\circ F | W
12 inches | 1 foot | R
2 hours | 120 minutes | R
2 hours | 2 minutes | W
5m | 5m | R
5m | 5 | W
5 or more | 5 | W
at least 5 | 5 | W
5 is wrong | 5 | W
not 5 | 5 | W
5 or 6 | 5 | W
5 and 6 | 5 | W
5, 6 | 5 | W
[1,2) | [1,2) | R
[1,2) | (1,2] | W
(1,2) | [1,2] | W
x \in [1,2) | 1 \le x < 2 | R
x \in [1,2) | 1 \le x \le 2 | W
1 \leq y < 2 | 1 \le x < 2 | W
[1,2) | 1 \le x < 2 | R
x>3 | (3,\infty) | R
x > 3 | 3 < x | R
x \ge 3 | x > 3 | W
x < 3 | x > 3 | W
x<-1 \text{ or } x>2 | (-\infty,-1)\cup(2,\infty) | R
(-\infty,-1) \cup (2, +\infty) | x<-1 \text{ or } x>2 | R
x<-1, x>2 | (-\infty,-1)\cup(2,\infty) | R
x > 1 and x < 2 | (1,2) | R
(-\infty, 2) U (2, \infty) | x \ne 2 | R
\mathbb{R} \setminus \{2\} | x \neq 2 | R
(-\infty,\infty) | \mathbb{R} | R
all real numbers | (-\infty,\infty) | R
(-\infty, 0] | [0,\infty) | W
[\sqrt{2}, 3] | \sqrt2 \le x \le 3 | R
[1.414, 3] | [\sqrt{2}, 3] | W
]0,1[ | (0,1) | R
\{x \mid x > 3\} | (3,\infty) | R
\{x \in \mathbb{R} : x > 3\} | x>3 | R
\{1,2,3\} | \{3,2,1\} | R
\{1,2,2\} | \{1,2\} | R
\{1,2\} | \{1,3\} | W
\{1,2\} | (1,2) | W
1,2 | \{1,2\} | R
2, 1 | 1, 2 | R
1, 2 | 1, 2, 3 | W
1, 2, 3 | 1, 2 | W
1, 1 | 1 | W
(1,2) | 1, 2 | R
(2,1) | 1, 2 | W
1, 2 | (1,2) | W
x=3, y=5 | (3,5) | R
y=5, x=3 | x=3, y=5 | R
x=5, y=3 | x=3, y=5 | W
x = 3 \text{ or } x = 5 | 5, 3 | R
x_1 = 3, x_2 = 5 | 3, 5 | R
x = 3, 5 | 3, 5 | R
x=\pm 7 | 7, -7 | R
\pm 7 | \{-7, 7\} | R
7 | \pm 7 | W
-7 | \pm 7 | W
2 \pm \sqrt{3} | 2+\sqrt3, 2-\sqrt3 | R
2 \pm \sqrt{3} | 2+\sqrt3 | W
\frac{1 \pm \sqrt{5}}{2} | \frac{1 + \sqrt{5}}{2}, \frac{1 - \sqrt{5}}{2} | R
\langle 1, 2, 3\rangle | (1,2,3) | R
(1, \frac12) | (1, 0.5) | R
(1,2,3) | (1,3,2) | W
((1,2),(3,4)) | ((1,2),(3,4)) | R
(1,2), (3,4) | (3,4), (1,2) | R
(1,2), (3,4) | (1,2), (4,3) | W
x=5 | 5 | R
5 | x = 5 | R
y=5 | x=5 | W
2x=10 | x=5 | W
x+1=6 | x = 5 | W
x = 10/2 = 5 | 5 | R
x = 3 = 5 | 5 | W
2+2=5 | 5 | W
\sqrt{50}=5\sqrt2 | 5\sqrt{2} | R
f(x) = x^2+1 | x^2+1 | R
y = x^2+1 | x^2+1 | R
y = 2x+1 | 2x-y+1=0 | R
y = 2x+1 | 2x-y-1=0 | W
x^2+y^2=4 | \frac{x^2}{4}+\frac{y^2}{4}=1 | R
(x-1)^2+y^2=4 | x^2-2x+y^2-3=0 | R
(x-1)^2+y^2=4 | x^2-2x+y^2-4=0 | W
xy=1 | y=\frac{1}{x} | R
0=0 | x+y=1 | W
x=x | x+y=1 | W
2x+3y>6 | 3y+2x-6>0 | R
2x+3y>6 | 2x+3y<6 | W
-2x-3y<-6 | 2x+3y>6 | R
(x+1)^2 | x^2+2x+1 | R
(x+1)^2 | x^2+x+1 | W
\frac{1}{x}+\frac{1}{y} | \frac{x+y}{xy} | R
\frac{x^2-1}{x-1} | x+1 | R
(a+b)(a-b) | a^2-b^2 | R
x(x+1)/2 | \frac{x^2+x}{2} | R
ab | ba | R
xyz | x*y*z | R
2\sqrt{3} | \sqrt{12} | R
\sqrt{3} | \sqrt{12} | W
\sqrt[3]{16} | 2\sqrt[3]{2} | R
2^{1/2} | \sqrt2 | R
\frac{6}{\sqrt{3}} | 2\sqrt3 | R
\sqrt{3+2\sqrt{2}} | 1+\sqrt{2} | R
sqrt(2)/2 | \frac{1}{\sqrt2} | R
√12 | 2√3 | R
\frac{\ln 8}{\ln 2} | 3 | R
\log_{10} 100 | 2 | R
\log 100 | 2 | R
\ln e^2 | 2 | R
\ln 6 | \ln 2 + \ln 3 | R
\ln 6 | \ln 5 | W
\log_3 2 | \frac{\ln 2}{\ln 3} | R
\log_2 9 | 2\log_2 3 | R
5! | 120 | R
\frac{10!}{8!} | 90 | R
\binom{5}{2} | 10 | R
1003! | 1005! | W
2^{100} | 1267650600228229401496703205376 | R
2^{100}+1 | 2^{100} | W
10^{-50} | 0 | W
10^{-50} | 10^{-51} | W
1000000007 | 1000000007 | R
3+4i | 4i+3 | R
i^2 | -1 | R
\frac{1}{i} | -i | R
(1+i)^2 | 2i | R
e^{i\pi} | -1 | R
e^{\frac{i\pi}{3}} | \frac12 + \frac{\sqrt3}{2}i | R
|3+4i| | 5 | R
\begin{pmatrix}1\\2\end{pmatrix} | \begin{bmatrix}1\\2\end{bmatrix} | R
\begin{pmatrix}1&2\end{pmatrix} | \begin{pmatrix}1\\2\end{pmatrix} | W
\frac12\begin{pmatrix}2&4\\6&8\end{pmatrix} | \begin{pmatrix}1&2\\3&4\end{pmatrix} | R
[[1,2],[3,4]] | \begin{pmatrix}1&2\\3&4\end{pmatrix} | R
\begin{pmatrix}1\\2\end{pmatrix} | (1,2) | R
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \begin{pmatrix}1&3\\2&4\end{pmatrix} | W
413_8 | 413_{8} | R
413 | 413_8 | W
267 | 413_8 | W
413_8 | 267 | W
101_{\text{two}} | 101_2 | R
1A_{16} | 1A_{16} | R
1A_{16} | 1B_{16} | W
413_{10} | 413 | R
1:30 | 1:30 | R
01:30 | 1:30 | R
1:30 | 11:30 | W
1:30 PM | 13:30 | R
1:30 \text{ p.m.} | 1:30 | R
1:30 a.m. | 1:30 p.m. | W
2:4 | 1:2 | R
3:2 | \frac32 | R
3:2 | 2:3 | W
-\infty | -\infty | R
+\infty | \infty | R
\infty | 5 | W
∞ | \infty | R
\{\} | \emptyset | R
no solution | \varnothing | R
no solution | 0 | W
\emptyset | \{0\} | W
yes | Yes | R
no | yes | W
\text{(B)} | B | R
(B) | B | R
C | B | W
B | (B) | R
Option B | B | R
\textbf{(B) } 12 | 12 | R
\textbf{(B) } 12 | B | R
\textbf{(C) } 12 | B | W
quadrant III | \text{Quadrant III} | R
III | quadrant III | F
the shape is a kite | the shape is a kite | R
7 | the shape is a kite | F
IV | VI | W
7\sqrt( | 7 | W
7\sqrt{ | 7 | W
7\foo | 7 | W
\frac{7}{ | 7 | W
7) | 7 | W
(7 | 7 | W
7 8 | 78 | W
7 8 | 56 | W
7+ | 7 | W
7^ | 7 | W
\frac{7}{0} | 7 | W
7\sqrt(3) | 7\sqrt{3} | R
__import__('os').getcwd() | 5 | W
3 \approx 5 | 5 | W
\sqrt{2} \approx 1.414 | \sqrt 2 | R
1.414 | \sqrt{2} | W
3.14 | \pi | W
\frac{22}{7} | \pi | W
3*pi/4 | \frac{3\pi}{4} | R
2πr | 2\pi r | R
\pi r^2 | r^2π | R
\sin^2 x + \cos^2 x | 1 | R
\sin 2x | 2\sin x\cos x | R
\sin(x) | \cos(x) | W
\tan 45^\circ | 1 | R
\sin \frac{\pi}{6} | 0.5 | R
\cos(x)+1 | 1+\cos x | R
e^x | \exp(x) | R
e^{x+1} | e\cdot e^x | R
2^{n+1} | 2 \cdot 2^n | R
2^{n+1} | 2^n+1 | W
x \equiv 3 \pmod{7} | x \equiv 10 \pmod 7 | R
x \equiv 3 \pmod{7} | x \equiv 4 \pmod 7 | W
3, 6, \ldots, 3m | 3, 6, \dots, 3m | R
15, 27, and 90 | 90, 27, 15 | R
x = 2\pi k, k \in \mathbb{Z} | 2\pi k | R
\text{Area} = 12 | 12 | R
Area = 12 \text{ cm}^2 | 12 | R
x^{2023} | x^{2023} | R
(x+1)^{2023} | (x+1)^{2023} | R
x^{-1} | \frac1x | R
C(n,2) | \frac{n(n-1)}{2} | W
|x-1| | |1-x| | R
\sqrt{x^2} | |x| | R
\sqrt{x^2} | x | W
\frac{n!}{(n-1)!} | n | R
a_n = 2n+1 | 2n+1 | R
a_{n} | a_n | R
x_1 | x_2 | W
58. | 58 | R
$58$ | 58 | R
\(58\) | 58 | R
\boxed{58} | 58 | R
5\% | 5\text{ percent} | R
0.1+0.2 | 0.3 | R
1/3+1/3+1/3 | 1 | R
99999999999999999999999999999999 | 100000000000000000000000000000000 | W
1.0000000000000000000000001 | 1 | W
{1,2} | \{1,2\} | R
10:15 | 2:3 | R
\text{2 apples} | 2 | R
1, 2 | 1,2 | R
\frac{y+3}{5} | \frac{y}{5}+\frac{4}{5} | W
-x | x | W
2x-3y+z-7=0 | -2x+3y-z+8=0 | W
11:30 | 11:30 | R
\frac{1}{1003!} | \frac{1}{1003!} | R
2 + 1/e | 2 + \frac{1}{\mathrm{e}} | R
2 + \frac{1}{e} | 2 + \frac{1}{\mathrm{e}} | R
15, 27, and 90 | 15, 27, \text{ and } 90 | R
7\sqrt{3} | 7\sqrt(3) | R
7\sqrt{3} | 7 | W
2*x-5*y+8=0 | 2x-5y+8=0 | R
42 | 42\% | R
\sqrt{5} | \sqrt{1/5} | W
3\pi/4 | \frac{3\pi}{4} | R
\frac{1}{2} | 0.5 | R
6.25\% | 6.24\% | W
(6,1) | (1,6) | W
[3,8] | [3,8) | W
\text{quadrant II} | \text{quadrant III} | F
-3, 8 | 8, -3 | R
18 \text{ cm} | 18 \text{ m} | W
18 \text{ cm} | 19 | W
50\% | \frac{1}{2} | R
\{1,2\} | \{1,2,3\} | W
(1,2) | (1,2) | R
\pm 7 | 7 | W
7, -7 | \pm 7 | R
7 | 7 \text{ or } -7 | W
\infty | \infty | R
\{\emptyset\} | \emptyset | W
\text{no solution} | \text{no solution} | R
\log_2 8 | 4 | W
\ln e | 1 | R
3.14159 | \pi | W
3.142857142857 | \frac{22}{7} | W
1000000007 | 1000000007.0 | R
10^{-12} | 0.000000000001 | R
2^{100}+1 | 2^{100}+1 | R
\text{(C)} | B | W
(B) | \text{(B)} | R
\mathrm{B} | B | R
x=2,y=3 | (2,3) | R
\frac{\sqrt{3}}{3} | \frac{1}{\sqrt3} | R
1.5 | 1\frac{1}{2} | R
3.0 \times 10^{8} | 3\times10^8 | R
3.0 \times 10^{7} | 300000000 | W
18\text{ cm} | 18\text{ cm}^2 | W
5.0 | 5 | R
05 | 5 | R
5,000 | 5000 | R
\frac12 \text{ hour} | 30 minutes | R
\frac{3}{4} \pi | 0.75\pi | R
x^2 + 2x + 1 = 0 | (x+1)^2=0 | R
y = x | x = y | R
x = y | x + y = 0 | W
a = b | b = a | R
\sqrt{-4} | 2i | R
(-8)^{1/3} | -2 | R
-2^2 | -4 | R
(-2)^2 | 4 | R
2^3^2 | 512 | R
12 \div 4 | 3 | R
\left(\frac{1}{2}\right)^{3} | 0.125 | R
\left[ 1, 2 \right) | [1,2) | R
\{ x : 1 < x < 2 \} | (1,2) | R
(1,2)\cup(2,3) | (1,3) | W
(1,2]\cup(2,3) | (1,3) | R
x \geq 1 \text{ and } x \leq 3 | [1,3] | R
|x| < 3 | (-3,3) | R
x \in \{1, 2\} | \{1,2\} | R
x \in \{1,2\} | x = 1 \text{ or } x = 2 | R
x=1, x=2 | \{1,2\} | R
1 \text{ and } 2 | 1, 2 | R
\text{Monday} | Monday | R
Tuesday | Monday | F
\text{even} | odd | W
\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix} | \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | R
\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array} | \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | R
\left(\begin{array}{c}1\\2\end{array}\right) | \begin{pmatrix}1\\2\end{pmatrix} | R
\begin{pmatrix}1&2\\3&4\\\end{pmatrix} | \begin{pmatrix}1&2\\3&4\end{pmatrix} | R
\mathbf{i}+2\mathbf{j} | i+2j | R
\overline{AB} | \overline{AB} | R
\angle ABC = 60^\circ | 60 | R
60^\circ | 60 | R
\frac{5}{7}\text{ miles} | 5/7 | R
100\,\mathrm{km/h} | 100 | R
\$32{,}000 | 32000 | R
\text{\$}32 | 32 | R
3\!:\!2 | 3:2 | R
3 : 2 | 3:2 | R
2.\overline{3} | \frac73 | R
0.\overline{12} | \frac{4}{33} | R
\sqrt[4]{16} | 2 | R
\frac{a}{b} | a/b | R
\frac{a}{b} | b/a | W
\cot x | \frac{\cos x}{\sin x} | R
\sec^2 x - \tan^2 x | 1 | R
\frac{dy}{dx}=2x | 2x | W
n(n+1)/2 | \binom{n+1}{2} | R
\lfloor 3.7 \rfloor | 3 | R
\max(1,2) | 2 | R
10! | 3628800 | R
\frac{2}{3}x - y = 4 | 2x-3y=12 | R
x^2/9 - y^2/4 = 1 | 4x^2 - 9y^2 = 36 | R
x:y = 1:2 | 1:2 | W
\text{A, B} | A, B | R
5 \text{ and } 5 | 5 | W
0.999... | 1 | W
\frac{1}{0} | \frac{1}{0} | R
1/3 | 0.33 | W
2/3 | 66.67\% | W
1+\sqrt{2}i | 1+i\sqrt{2} | R
\text{0.5} | 1/2 | R
six | 6 | W
x<5 | x<5.0 | R
5>x | x<5 | R
2<x<5 | (2,5) | R
2<x<5 | x>2 | W
x_{1}=1,x_{2}=-1 | \pm1 | R
|x| < 3 | (-3,3) | R
|x-1| \le 2 | [-1,3] | R
|x+1| > 2 | (-\infty,-3)\cup(1,\infty) | R
3 > |x| | -3<x<3 | R
|x| \ge 3 | (-3,3) | W
2x < 6 | x < 3 | W
x+y<3 | 2x+2y<6 | R
|x|=3 | \pm 3 | W
|x| < 0 | \emptyset | R
x > 2 | x > 2 | R
"""
_UNICODE = "3.0\u00d710⁸ | 300000000 | R\n(-∞, 0) \u222a (0, ∞) | x ≠ 0 | R\n\u22127 | -7 | R"
_ROWS = [
    tuple(part.strip() for part in line.rsplit(" | ", 2)) for line in (_TABLE.strip() + "\n" + _UNICODE).split("\n")
]


@pytest.mark.parametrize(("answer", "gold", "verdict"), _ROWS)
def test_kind(answer: str, gold: str, verdict: str) -> None:
    score = verify_math(answer, gold, response=False)
    assert score.verdict is _VERDICTS[verdict], score.note
    assert score.note
    assert (score.value > 0) == (verdict == "R")


@pytest.mark.parametrize("gold", sorted({gold for _, gold, _ in _ROWS}))
def test_every_gold_equals_itself(gold: str) -> None:
    assert verify_math(gold, gold, response=False).verdict is Verdict.RIGHT
    assert verify_math(rf"Thus \boxed{{{gold}}}.", gold).verdict is Verdict.RIGHT


_SYMMETRIC = [(a, g, v) for a, g, v in _ROWS if v == "R" and not any(s in a + g for s in "=%<>~|:")]


@pytest.mark.parametrize(("answer", "gold", "verdict"), _SYMMETRIC)
def test_right_answers_are_right_as_golds(answer: str, gold: str, verdict: str) -> None:
    if "(" in answer and "(" not in gold:  # a list may stand for a pair as the gold only
        return
    assert verify_math(gold, answer, response=False).verdict is Verdict.RIGHT
