"""What one model call does, decided before it begins: what to think and say, which tools to call, how to end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.demo import sayings
from app.demo.answers import find_style, write_answer
from app.demo.plan import Plan, make_plan
from app.demo.situation import Situation
from app.demo.special import Special, find_special
from app.demo.wants import Want, fitted
from app.providers.chunks import Finish, ToolCall
from app.providers.errors import ProviderError, UpstreamRejected, UpstreamUnavailable
from app.providers.provider import ToolSpec


@dataclass(frozen=True, slots=True)
class Say:
    """Text of the answer; in pieces of `size` characters where that is not 0, else of a few words."""

    text: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Think:
    """A piece of thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds without anything."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Break:
    """The call fails here."""

    error: ProviderError


Part = Say | Think | Pause | Break


@dataclass(frozen=True, slots=True)
class Script:
    """One model call. `first` is how many tries of it fail before one goes through; `slowness` stretches the pace."""

    parts: tuple[Part, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    first: int = 0
    slowness: float = 1.0


# What a tool does, for "I will …".
_DOING = {
    "list_transactions": "look up the transactions",
    "list_invoices": "look up the invoices",
    "account_balance": "check the balance",
    "spending_chart": "draw the chart",
    "create_invoice": "write the invoice",
    "pay_bill": "prepare the payment",
    "remind_customer": "write the reminder",
    "look_up_vat_number": "look up the VAT rules",
    "explain_term": "look up the term",
    "year_report": "write the report, which takes a moment",
    "check_bank_feed": "let a small program check the bookings",
}
_ANNOUNCED = {"create_invoice", "pay_bill", "year_report", "check_bank_feed"}
_HARMLESS = ("account_balance", "list_invoices", "list_transactions")


def write_script(situation: Situation) -> Script:
    """What the model does in this situation."""
    special = find_special(situation.words)
    plan = make_plan(special.rest, situation)
    if special.mood in ("broken call", "broken calls", "loop") and not plan.batches:
        plan = Plan(batches=_harmless(situation))
    batches, missing = _possible(plan, situation.offered)
    script = _special_call(special, batches, situation)
    if script is None and plan.question and not situation.now.steps:
        script = Script((Think("Something is still missing, so I ask."), Say(plan.question)))
    if script is None and len(situation.steps) < len(batches):
        script = _calls(batches, situation)
    if script is None:
        script = _ending(special, _answer(special, batches, missing, situation))
    return _with_failures(special, script, situation, tools=bool(batches))


Batch = list[tuple[str, dict[str, Any]]]


def _possible(plan: Plan, offered: Mapping[str, ToolSpec]) -> tuple[list[Batch], list[str]]:
    """The calls of the plan that can be made with the offered tools, and the names of the tools for the others."""
    batches: list[Batch] = []
    missing: list[str] = []
    for batch in plan.batches:
        calls: Batch = []
        for want in batch:
            spec = offered.get(want.tool)
            arguments = None if spec is None or want.question else fitted(want, spec)
            if arguments is None:
                missing.append(want.tool)
            else:
                calls.append((want.tool, arguments))
        if calls:
            batches.append(calls)
    return batches, missing


def _harmless(situation: Situation) -> tuple[tuple[Want, ...], ...]:
    """A call that changes nothing as far as can be seen, for showing what goes wrong with calls."""
    free = [name for name, spec in situation.offered.items() if not spec.schema.get("required")]
    name = next((name for name in (*_HARMLESS, *free) if name in situation.offered), None)
    return ((Want(name),),) if name else ()


def _special_call(special: Special, batches: Sequence[Batch], situation: Situation) -> Script | None:
    """The step of a loop, or a call that is broken on purpose; None where neither was asked for."""
    if not batches:
        return None
    name, arguments = batches[0][0]
    if special.mood == "loop":
        turn = len(situation.now.steps) + 1
        says = () if special.bare else (Say(f"Round {turn}: I {_DOING.get(name, f'call {name}')} once more.\n\n"),)
        return Script((Think("Again."), *says), (_tool_call(situation, 0, name, arguments),), "tool_calls")
    if special.mood == "broken calls" or (special.mood == "broken call" and not situation.broken):
        broken = ToolCall(_call_id(situation, 0), name, None)
        return Script((Think("I call a tool, and my arguments break off."),), (broken,), "tool_calls")
    return None


def _calls(batches: Sequence[Batch], situation: Situation) -> Script:
    """The next batch of calls, with a remark where it does more than look something up."""
    step = len(situation.steps)
    batch = batches[step]
    names = [name for name, _ in batch]
    doing = _joined([_DOING.get(name, f"call `{name}`") for name in names])
    thought = f"The user wants me to {doing}. " if step == 0 else f"That is done. Now I {doing}. "
    thought += f"For that I have {'the tool' if len(names) == 1 else 'the tools'} {', '.join(names)}."
    parts: list[Part] = [Think(thought)]
    if step or len(batches) > 1 or len(names) > 1 or _ANNOUNCED & set(names):
        opening = "Next I" if step else "First I" if len(batches) > 1 else "I"
        parts.append(Say(f"{opening} will {doing}.\n\n"))
    calls = tuple(_tool_call(situation, number, name, given) for number, (name, given) in enumerate(batch))
    return Script(tuple(parts), calls, "tool_calls")


def _tool_call(situation: Situation, number: int, name: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(_call_id(situation, number), name, arguments)


def _call_id(situation: Situation, number: int) -> str:
    return f"call_{situation.mark}_{number}"


def _answer(special: Special, batches: Sequence[Batch], missing: Sequence[str], situation: Situation) -> tuple[Part, ...]:
    """What is said and thought when no tool is to be called any more."""
    if batches:
        thought = f"I have the results of {len(situation.done)} calls and put them into words."
        if len(situation.done) == 1:
            thought = "I have the result and put it into words."
        text = write_answer(situation.done, find_style(special.rest))
        return Think(thought), Say(text + _not_offered(missing))
    talk = sayings.small_talk(special.rest, situation)
    if talk == sayings.UNKNOWN and missing:
        return (Say(_not_offered(missing).strip()),)
    if talk != sayings.UNKNOWN or not special.asked:
        return (Say(talk),)
    return _about_behaviour(special)


def _not_offered(missing: Sequence[str]) -> str:
    names = _joined([f"`{name}`" for name in dict.fromkeys(missing)])
    return f"\n\nI would need {names} for that, which I was not given here." if missing else ""


def _about_behaviour(special: Special) -> tuple[Part, ...]:
    """What is said where only a behaviour was asked for."""
    match special.mood:
        case "long":
            return Think("A long answer: headings, a list, a table and some code."), Say(sayings.LONG)
        case "think tags":
            # Cut in the middle of the tags, wherever that is.
            return (Say(sayings.THOUGHT_ALOUD, size=5),)
        case "think only":
            return (Think(sayings.PONDERED),)
        case "loop" | "broken call" | "broken calls":
            return (Say("I was given no tool that I could call without arguments, so there is nothing to break."),)
    if special.failure == "first":
        tries = "try" if special.first == 1 else f"{special.first} tries"
        return (Say(f"Here I am. The first {tries} failed before anything was shown, so the service simply tried again."),)
    if special.silence:
        seconds = f"{special.silence:g} seconds"
        return (Say(f"That was silence for {seconds}: not a single chunk came from me."),)
    if special.slowness != 1.0:
        return (Say(sayings.SLOW),)
    return (Say(sayings.MIDDLE),)


def _ending(special: Special, parts: tuple[Part, ...]) -> Script:
    """The answer, ended as was asked."""
    match special.mood:
        case "empty":
            return Script()
        case "think only":
            return Script(tuple(part for part in parts if isinstance(part, Think)) or (Think(sayings.PONDERED),))
        case "length" | "filter":
            finish: Finish = "length" if special.mood == "length" else "content_filter"
            return Script(() if special.bare else _halved(parts), finish=finish)
        case "long" if not any(isinstance(part, Say) and part.text == sayings.LONG for part in parts):
            return Script((*parts, Say("\n\n" + sayings.LONG)))
    return Script(parts)


def _halved(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The same up to the middle of the last text."""
    last = parts[-1]
    if not isinstance(last, Say):
        return parts
    words = last.text.split(" ")
    return (*parts[:-1], replace(last, text=" ".join(words[: max(1, (len(words) + 1) // 2)])))


def _with_failures(special: Special, script: Script, situation: Situation, *, tools: bool) -> Script:
    """The script with the failure, the pause and the pace that were asked for, in the step where they belong."""
    begun = bool(situation.now.steps)
    script = replace(script, slowness=special.slowness)
    if special.silence and not begun:
        script = replace(script, parts=(Pause(special.silence), *script.parts))
    if begun != (special.late and tools) and special.failure != "in the middle":
        return script
    match special.failure:
        case "at once":
            return replace(script, parts=(Pause(0.4), Break(_passing())), calls=())
        case "reject":
            refused = UpstreamRejected("The model refused the request.", code="demo_rejected", detail="as was asked")
            return replace(script, parts=(Pause(0.2), Break(refused)), calls=())
        case "first":
            return replace(script, first=special.first)
        case "in the middle" if not script.calls:
            return replace(script, parts=(*_halved(script.parts), Break(_passing())))
    return script


def _passing() -> UpstreamUnavailable:
    return UpstreamUnavailable("The model failed.", detail="the demo was asked to fail")


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
