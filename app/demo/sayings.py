"""What the assistant says without looking anything up: small talk, help, and texts that show a format."""

from __future__ import annotations

import re

from app.demo.money import euros
from app.demo.situation import Situation
from app.demo.terms import TERMS, find_term
from app.demo.words import find_amount, names_after

HELP = """I keep the books of a small studio. Try one of these:

- **Look things up**: "transactions of last month", "what did I spend on travel in May?", "open invoices", \
"my balance", "transactions and open invoices"
- **Pictures**: "a chart of last month"
- **Do things**: "create an invoice for Miller Ltd over €1,200.50", "pay 120 to Northwind" (I ask first), \
"remind Miller"
- **Go on**: "and the month before?", "as CSV", "pay it"
- **Questions**: "what is a VAT number?", "VAT rate in Spain", "19% of 1200"
- **Take my time**: "run a slow report", "check the bank feed"

And to see how the service behaves when things go wrong: "be silent for 20 seconds", "be slow", "fail in the middle", \
"fail at once", "fail twice, then answer", "reject", "say nothing", "only think", "cut it short", "content filter", \
"use a broken tool call", "long answer", "think tags", "loop"."""

UNKNOWN = """I am only a demo: a small script that knows a few words of bookkeeping, not a real language model, so I did \
not understand that. You could try:

- "show me the transactions of last month"
- "create an invoice for Northwind Traders over 1200 euros"
- "pay the electricity bill of 84.50 euros"
- "what is a VAT number?"
- "help", for everything that I can do"""

LONG = """# How to keep small books in order

Bookkeeping is less about numbers than about **habits**. A business that looks at its books once a week has no bad \
surprises in December. Here is a routine that takes an hour a week, and what it saves.

## 1. Collect

Every amount that moves needs a document. Keep them in one place, on the day they come:

- invoices that you have *written*, with number and date
- invoices that you have *received*
- receipts, also small ones
- bank statements, by month

> What has no document did not happen, as far as the tax office is concerned.

## 2. Book

Give each amount a date, a category and a short description. Ten categories are enough for most; a hundred are a burden.

| Category | Example | How often |
|:---|:---|---:|
| Rent | the office | monthly |
| Software | seats and storage | monthly |
| Travel | trains, hotels | as it comes |
| Supplies | paper, ink | as it comes |
| Taxes | VAT, payroll tax | quarterly |

## 3. Compare

Once a month, compare your books with the bank's. The rule is simple: *opening balance plus what came in minus what went \
out is the closing balance*. When it is not, look for the difference itself first, then for half of it (an amount booked \
on the wrong side), then for a multiple of nine (two digits swapped).

```python
def difference(opening: int, moves: list[int], closing: int) -> int:
    \"\"\"Cents that are missing in the books; 0 when they agree.\"\"\"
    return closing - opening - sum(moves)


assert difference(10_000, [2_500, -1_200], 11_300) == 0
```

## 4. Chase

Money that is owed to you is not money that you have. Look at the open invoices each week:

1. Three days after the due date, send a friendly reminder.
2. After two weeks, call. A voice works better than a letter.
3. After four weeks, name a last date and say what comes next.

## 5. Put aside

VAT is not yours; you only keep it for a while. Put it on another account on the day it comes in, and the quarter's end \
is a day like any other. The same goes for income tax: a third of the profit, set aside each month, is seldom far off.

### In short

**Collect, book, compare, chase, put aside.** An hour a week, and the books are always ready: for the tax office, for the \
bank, and above all for you."""

THOUGHT_ALOUD = (
    "<think>Some models write their thinking into the text itself, between tags. The service takes it out again, also "
    "where a tag is cut in two.</think>That is how it looks when a model thinks **inside its text**: what stood between "
    "the tags is shown as reasoning, and only this sentence is the answer."
)

PONDERED = (
    "I was asked to think and to say nothing. So I think about invoices, due dates and balances, come to a conclusion, and "
    "keep it to myself. A turn without anything visible ends in an apology."
)

MIDDLE = (
    "Let me explain how an invoice comes to be paid. First you write it, with a number and a date, and send it. Then the "
    "customer has two weeks. If nothing has come by then, you write a reminder, and"
)

SLOW = "I am taking my time. Each word comes a little later than the one before would have liked. That is all there is."

WHO = (
    "I am the demo assistant of Earlybyte: a small script, not a real language model. But I take the same way through the "
    "service as one, and the rows I read and write are real. Say **help** to see what I can do."
)

_SMALL_TALK: tuple[tuple[str, str], ...] = (
    (
        r"^\W*(?:and )?(?:say )?(?:hi|hello|hey|good (?:morning|afternoon|evening|day)|greetings)\b(?:\W+\w+){0,2}\W*$",
        'Hello! I am the bookkeeping assistant. Ask me for "my balance", "last month", or "help".',
    ),
    (r"\b(?:thanks|thank you|thx|cheers|great|perfect|well done|nice)\b", "You are welcome. Anything else for the books?"),
    (r"\b(?:bye|goodbye|see you|good night)\b", "Goodbye! The books stay open."),
    (
        r"\bhow are you\b|\bhow(?:'s| is) it going\b",
        "Debits and credits are equal, so I am well. What shall we look at?",
    ),
    (
        r"\bwho are you\b|\bwhat are you\b|\byour name\b|\bare you (?:an? )?(?:ai|human|real|robot|bot|model)\b",
        WHO,
    ),
    (r"\bjoke\b", "Why do bookkeepers sleep so well? They have **balanced** everything before going to bed."),
    (r"\bhelp\b|\bwhat can (?:you|i)\b|\bwhat do you do\b|\bhow (?:do|does) (?:this|it|you) work\b|^\W*\?+\W*$", HELP),
    (r"\bwhat (?:day|date) is\b|\btoday's date\b", "Today is **{today}** (UTC)."),
    (r"^\W*(?:no|nope|never mind|stop|cancel|forget it)\W*$", "All right, nothing was done."),
    (r"^\W*(?:yes|ok|okay|sure|fine)\W*$", 'Good. Tell me what to do next, or say "help".'),
)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s?(?:%|percent)\s+(?:vat\s+)?(?:of|on|to)\b(.*)", re.IGNORECASE)


def small_talk(words: str, situation: Situation) -> str:
    """An answer that needs no tool; an honest one where nothing else is left."""
    if situation.now.pictures and not words.strip():
        return "Thank you for the picture. I am a script and cannot look at it; tell me in words what it says."
    if percent := _PERCENT.search(words):
        amount = find_amount(percent[2])
        if amount is not None:
            return _vat_sum(float(percent[1]), amount, code=bool(re.search(r"\bcode\b", words, re.IGNORECASE)))
    if (bill := _bill(words)) is not None:
        return bill
    for pattern, saying in _SMALL_TALK:
        if re.search(pattern, words, re.IGNORECASE):
            return saying.replace("{today}", situation.today.isoformat())
    term = find_term(words)
    return f"**{_capital(term)}**: {TERMS[term]}" if term else UNKNOWN


def _bill(words: str) -> str | None:
    """An offer to pay what "I got a bill of 120 from Northwind" tells of."""
    if not re.search(r"\bbill\b", words, re.IGNORECASE):
        return None
    amount, names = find_amount(words), names_after(words, "from")
    if amount is None or not names:
        return None
    return f'A bill of **{euros(round(amount * 100))}** from **{names[0]}**. Say "pay it", and I will, once you approve.'


def _vat_sum(percent: float, amount: float, *, code: bool) -> str:
    net = round(amount * 100)
    vat = round(net * percent / 100)
    table = (
        f"| | Amount |\n|:---|---:|\n| Net | {euros(net)} |\n| VAT, {percent:g} % | {euros(vat)} |\n"
        f"| **Gross** | **{euros(net + vat)}** |"
    )
    if not code:
        return f"{percent:g} % of {euros(net)} is **{euros(vat)}**.\n\n{table}"
    return (
        f"{table}\n\n```python\nnet_cents = {net}\nvat_cents = round(net_cents * {percent:g} / 100)  # {vat}\n"
        f"gross_cents = net_cents + vat_cents  # {net + vat}\n```"
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
