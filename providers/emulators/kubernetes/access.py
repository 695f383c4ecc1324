"""How clients get in: a certificate of the cluster's own, and a kubeconfig that trusts it.

Without TLS the clients of Kubernetes send no token.
"""

from __future__ import annotations

import ipaddress
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from providers.emulators.companies import kubeconfig_in


def own_certificate(folder: Path) -> tuple[Path, Path]:
    """Certificate and key for this host, made once for each data directory."""
    certificate_file, key_file = folder / "tls.crt", folder / "tls.key"
    if certificate_file.exists() and key_file.exists():
        return certificate_file, key_file
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "emulated-kubernetes")])
    addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3_650))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _write(key_file, key.private_bytes(pem, kind, plain))
    _write(certificate_file, certificate.public_bytes(pem))
    return certificate_file, key_file


def write_kubeconfig(folder: Path, url: str, certificate_file: Path, token: str, namespace: str) -> Path:
    """For `kubectl --kubeconfig`, and for whoever else reads such files."""
    cluster = {"server": url, "certificate-authority": str(certificate_file)}
    context = {"cluster": "emulated", "user": "emulated", "namespace": namespace}
    told = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "emulated",
        "clusters": [{"name": "emulated", "cluster": cluster}],
        "users": [{"name": "emulated", "user": {"token": token}}],
        "contexts": [{"name": "emulated", "context": context}],
    }
    path = kubeconfig_in(folder)
    _write(path, json.dumps(told, indent=2).encode())
    return path


def _write(path: Path, text: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text)
