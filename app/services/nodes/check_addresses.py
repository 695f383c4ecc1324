"""Refuse to rent real machines that could never call home. Asked before anything is started, and so before anything is
rented: a machine that cannot reach us is paid for until its deadline, and then the next one is rented."""

from __future__ import annotations

from app.core.reach import is_public
from app.errors import InvalidInput
from app.settings import Settings


def check_addresses(settings: Settings) -> None:
    """Raises InvalidInput naming the setting whose address real machines cannot reach."""
    real = [one.name for one in settings.providers if one.is_configured and one.is_real]
    if not real or settings.private_addresses:
        return
    for name, url in addresses_of(settings).items():
        if not is_public(url):
            raise InvalidInput(
                f"{url!r} leads to this host or a private network, and machines of {', '.join(real)} could never reach "
                f"it, so none is rented; set {name} to an address that the internet reaches, or "
                "ALLPASS_PRIVATE_ADDRESSES=true where those machines are in your network (a VPN in their image)",
                param=name,
            )


def real_providers(settings: Settings) -> list[str]:
    """The companies that this process rents from, each with real money. One at a private address is an emulator.

    One that cannot be used now is among them: it may have machines, and they are paid for.
    """
    return [
        one.name for one in settings.providers if one.is_real and (one.is_configured or (one.problem and one.owns_name))
    ]


def addresses_of(settings: Settings) -> dict[str, str]:
    """What a rented machine has to reach, by the setting that says where."""
    found = {"ALLPASS_PUBLIC_URL": settings.public_url}
    if settings.objects_store == "directory":
        return {**found, "ALLPASS_OBJECTS_URL": settings.objects_url}
    store = settings.s3_public_endpoint or settings.s3_endpoint
    return found if store is None else {**found, "ALLPASS_S3_PUBLIC_ENDPOINT": store}
