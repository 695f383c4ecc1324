"""The way into the cluster: a kubeconfig with one of its contexts, or what pods have. Nothing of it is ever told."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from app.errors import AuthFailed
from providers.kubernetes.options import KubeOptions

if TYPE_CHECKING:
    from kubernetes_asyncio import client  # thousands of classes: loaded where a cluster is used


async def connected(options: KubeOptions) -> client.ApiClient:
    """A client that has asked nothing yet. Raises AuthFailed that names the file and what is wrong with it."""
    from kubernetes_asyncio import client
    from kubernetes_asyncio.config import ConfigException

    settings = client.Configuration()
    settings.host = ""
    where = options.kubeconfig or "the service account of this pod"
    try:
        await _read_way(options, settings)
        return client.ApiClient(configuration=settings)
    except FileNotFoundError as error:
        raise AuthFailed(f"ALLPASS_KUBERNETES_KUBECONFIG: there is no file {error.filename}") from None
    except ConfigException as error:
        raise AuthFailed(f"kubernetes cannot be reached by {where}: {error}") from error
    except Exception as error:  # what a broken file, certificate or helper program raises: all kinds, and with secrets
        kind = type(error).__name__
        raise AuthFailed(f"kubernetes cannot be reached by {where}: it cannot be used ({kind})") from None


async def _read_way(options: KubeOptions, settings: client.Configuration) -> None:
    from kubernetes_asyncio import config

    if not options.kubeconfig:
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        return
    path = os.path.expanduser(options.kubeconfig)  # noqa: ASYNC240, PTH111 - a small local file, read once
    os.stat(path)  # noqa: PTH116
    context = options.context or None
    await config.load_kube_config(path, context, client_configuration=settings, persist_config=False)
