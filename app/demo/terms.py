"""Words of bookkeeping, and how VAT works where: small tables that are looked up."""

from __future__ import annotations

import re
from dataclasses import dataclass

TERMS = {
    "VAT number": "the number under which a business is registered for value added tax. It stands on invoices, and a "
    "seller checks it before selling to a business in another EU country without VAT. It begins with the country's "
    "code, such as DE, FR or NL.",
    "VAT": "value added tax: a tax on what is sold. A business adds it to its prices, takes off the VAT that it has "
    "paid itself, and hands the difference to the tax office.",
    "reverse charge": "a rule by which the buyer, not the seller, owes the VAT. The invoice then shows no VAT, but a "
    "note that says so and both VAT numbers.",
    "input tax": "the VAT that you have paid on what you bought for the business. It is taken off the VAT that is owed.",
    "invoice": "a written demand for payment: who sold what to whom, when, for how much, with which tax, and when the "
    "money is due.",
    "credit note": "the opposite of an invoice: it takes back all or a part of what an invoice has charged.",
    "accrual": "an entry for income or cost in the period to which it belongs, though the money moves in another.",
    "depreciation": "spreading the cost of something that is used for years over those years.",
    "cash flow": "the money that really came in and went out in a period, whatever was invoiced.",
    "balance sheet": "a picture of one day: what a business owns on one side, its debts and its equity on the other.",
    "reconciliation": "comparing two records of the same thing, such as your books and the bank's, until they agree.",
    "double entry": "booking each amount twice, as a debit on one account and a credit on another, so errors show.",
    "dunning": "reminding a customer, step by step and ever more firmly, of an invoice that is overdue.",
    "receivables": "the money that customers still owe you.",
    "payables": "the money that you still owe to others.",
    "IBAN": "the international number of a bank account: two letters for the country, two check digits, then the "
    "account itself. The check digits catch nearly every typing error.",
    "gross": "an amount with VAT.",
    "net": "an amount without VAT.",
}


@dataclass(frozen=True, slots=True)
class CountryVat:
    """VAT in one country: the standard rate as of 2025, and the shape of a VAT number."""

    country: str
    rate: str
    shape: str
    pattern: str


_COUNTRIES = (
    CountryVat("Austria", "20 %", "ATU and 8 digits", r"ATU\d{8}"),
    CountryVat("Belgium", "21 %", "BE and 10 digits", r"BE[01]\d{9}"),
    CountryVat("Czechia", "21 %", "CZ and 8 to 10 digits", r"CZ\d{8,10}"),
    CountryVat("Denmark", "25 %", "DK and 8 digits", r"DK\d{8}"),
    CountryVat("Finland", "25.5 %", "FI and 8 digits", r"FI\d{8}"),
    CountryVat("France", "20 %", "FR, 2 characters and 9 digits", r"FR[0-9A-Z]{2}\d{9}"),
    CountryVat("Germany", "19 %", "DE and 9 digits", r"DE\d{9}"),
    CountryVat("Ireland", "23 %", "IE, 7 digits and 1 or 2 letters", r"IE\d[0-9A-Z]\d{5}[A-Z]{1,2}"),
    CountryVat("Italy", "22 %", "IT and 11 digits", r"IT\d{11}"),
    CountryVat("Luxembourg", "17 %", "LU and 8 digits", r"LU\d{8}"),
    CountryVat("the Netherlands", "21 %", "NL, 9 digits, B and 2 digits", r"NL\d{9}B\d{2}"),
    CountryVat("Poland", "23 %", "PL and 10 digits", r"PL\d{10}"),
    CountryVat("Portugal", "23 %", "PT and 9 digits", r"PT\d{9}"),
    CountryVat("Spain", "21 %", "ES and 9 characters, the first or last of them a letter", r"ES[0-9A-Z]\d{7}[0-9A-Z]"),
    CountryVat("Sweden", "25 %", "SE and 12 digits", r"SE\d{12}"),
    CountryVat("Switzerland", "8.1 %", "CHE, 9 digits and MWST, TVA or IVA", r"CHE\d{9}(?:MWST|TVA|IVA)"),
    CountryVat("the United Kingdom", "20 %", "GB and 9 digits", r"GB\d{9}"),
)
_OTHER_NAMES = {
    "holland": "the Netherlands",
    "uk": "the United Kingdom",
    "great britain": "the United Kingdom",
    "britain": "the United Kingdom",
    "czech republic": "Czechia",
}


def find_term(text: str) -> str | None:
    """The longest term of the table that `text` holds, as the table spells it."""
    held = [term for term in TERMS if re.search(rf"\b{term}s?\b", text, re.IGNORECASE)]
    return max(held, key=len, default=None)


def find_country(text: str) -> CountryVat | None:
    """The country of the table that `text` names first."""
    names = {row.country.removeprefix("the ").lower(): row for row in _COUNTRIES}
    names |= {other: names[name.removeprefix("the ").lower()] for other, name in _OTHER_NAMES.items()}
    found = re.search(rf"\b(?:{'|'.join(sorted(names, key=len, reverse=True))})\b", text.lower())
    return names[found[0]] if found else None


def countries() -> str:
    """The countries of the table, for a sentence."""
    return ", ".join(row.country for row in _COUNTRIES)
