"""Servers that refuse: certificates that cannot be trusted, wrong passwords, read-only, full, out of connections."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from haotuner.cli.app import run
from haotuner.errors import RecordsUnreachable, RecordsUnusable
from haotuner.fleet.node import free_ports
from haotuner.records import open_store
from tests.contract.postgres_server import NEEDS, USER, Databases, databases
from tests.contract.record_examples import record

pytestmark = [NEEDS, pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl: not installed")]
NAME, PASSWORD = "tuner", "s3cret-w0rd"
GOOD, STRANGER, EXPIRED = "good.pem", "stranger.pem", "expired.pem"


def certificates(folder: Path) -> None:
    """A key with a certificate of localhost, one that is no longer valid, and a stranger's of the same name."""
    request = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost")
    for key, name in (("key.pem", GOOD), ("stranger.key", STRANGER)):
        openssl(folder, *request, "-x509", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", name)
    openssl(folder, "req", "-new", "-key", "key.pem", "-subj", "/CN=localhost", "-out", "request.csr")
    openssl(folder, "x509", "-req", "-in", "request.csr", "-signkey", "key.pem", "-days", "-1", "-out", EXPIRED)


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


class TlsServer:
    """A server on a port of this host. ``begin``: with this certificate; none: without TLS."""

    def __init__(self, server: Databases, folder: Path, port: int) -> None:
        self.server, self.folder, self._port = server, folder, port
        self._name = server.fresh().partition("@/")[2].partition("?")[0]
        server.sql(server.url("postgres"), f"CREATE ROLE {NAME} LOGIN PASSWORD '{PASSWORD}'")
        server.sql(server.url("postgres"), f"GRANT ALL ON DATABASE {self._name} TO {NAME}")
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"local all {USER} trust\nhost all {NAME} 127.0.0.1/32 scram-sha-256\n")

    def begin(self, certificate: str = "") -> None:
        self.server.stop("fast")
        options = f"-c listen_addresses=127.0.0.1 -c port={self._port}"
        if certificate:
            for name in (certificate, "key.pem"):
                shutil.copy(self.folder / name, self.server.data / name)
                (self.server.data / name).chmod(0o600)
                if os.geteuid() == 0:
                    shutil.chown(self.server.data / name, USER, USER)
            options += f" -c ssl=on -c ssl_cert_file={certificate} -c ssl_key_file=key.pem"
        self.server.options = options
        self.server.begin()

    def sql(self, statement: str) -> None:
        """Carry out a statement as the server's owner."""
        self.server.sql(f"{self.server.url('postgres')}&port={self._port}", statement)

    def url(self, trusted: str = "", mode: str = "verify-full", host: str = "localhost", password: str = PASSWORD) -> str:
        trust = f"&sslrootcert={self.folder / trusted}" if trusted else ""
        where = f"hostaddr=127.0.0.1&sslmode={mode}{trust}"
        return f"postgresql://{NAME}:{password}@{host}:{self._port}/{self._name}?{where}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    folder = tmp_path_factory.mktemp("certificates")
    certificates(folder)
    with databases() as plain:
        yield TlsServer(plain, folder, free_ports(1)[0])


def test_a_certificate_that_is_trusted_opens_the_store(server: TlsServer) -> None:
    server.begin(GOOD)
    with closing(open_store(server.url(GOOD))) as store:
        assert store.append([record(1)]) == 1


BAD = {
    "of a stranger": (GOOD, {"trusted": STRANGER}),
    "that nobody vouches for": (GOOD, {"trusted": "lost.pem"}),
    "of another host": (GOOD, {"trusted": GOOD, "host": "db.example"}),
    "that is no longer valid": (EXPIRED, {"trusted": EXPIRED}),
    "that is not there": ("", {"mode": "require"}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_certificate_is_refused_in_words(server: TlsServer, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    certificate, words = BAD[name]
    server.begin(certificate)
    with pytest.raises(RecordsUnusable, match=r"cannot open.*\*\*\*@.*sslrootcert=FILE") as refused:
        open_store(server.url(**words))
    assert not isinstance(refused.value, RecordsUnreachable), "no patience makes a certificate better"
    assert PASSWORD not in str(refused.value)
    assert run(["records", "list", "--db", server.url(**words)]) == 1
    answer = capsys.readouterr()
    assert "sslrootcert=FILE" in answer.err and PASSWORD not in answer.err + answer.out and answer.out == ""


def test_a_wrong_password_is_refused_and_printed_nowhere(server: TlsServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.begin(GOOD)
    url = server.url(GOOD, password="wr0ng-w0rd")
    with pytest.raises(RecordsUnusable, match="password authentication failed.*this user may not") as refused:
        open_store(url)
    assert not isinstance(refused.value, RecordsUnreachable) and "wr0ng" not in str(refused.value)
    for words in (["records", "check", "--db", url], ["report", url], ["records", "merge", "memory://", url]):
        assert run(words) == 1
        answer = capsys.readouterr()
        assert "wr0ng" not in answer.err + answer.out and "***@localhost" in answer.err


def test_a_server_that_is_read_only_is_read(server: TlsServer) -> None:
    server.begin(GOOD)
    url = server.url(GOOD)
    with closing(open_store(url)) as store:
        store.append([record(2)])
    server.sql(f"ALTER ROLE {NAME} SET default_transaction_read_only = on")
    try:
        with closing(open_store(url, write=False)) as store:
            assert record(2) in list(store.records())
        store = open_store(url)
        with pytest.raises(RecordsUnusable, match="read-only transaction; this user may not"):
            store.append([record(3)])
        with pytest.raises(RecordsUnusable, match="read-only"):
            store.close()
    finally:
        server.sql(f"ALTER ROLE {NAME} RESET default_transaction_read_only")


def test_a_server_without_connections_says_so(server: TlsServer) -> None:
    server.begin(GOOD)
    server.sql(f"ALTER ROLE {NAME} CONNECTION LIMIT 1")
    try:
        with closing(open_store(server.url(GOOD))), pytest.raises(RecordsUnusable, match="too many connections.*free some"):
            open_store(server.url(GOOD))
    finally:
        server.sql(f"ALTER ROLE {NAME} CONNECTION LIMIT -1")


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 12 MiB that the server may write to."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pg-")))
        folder.chmod(0o755)
        words = ["mount", "-t", "tmpfs", "-o", "size=12m", "haotuner-test", str(folder)]
        if subprocess.run(words, capture_output=True).returncode:
            pytest.skip("mount: needs the right to mount a tmpfs")
        stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
        shutil.chown(folder, USER, USER)
        yield folder


def test_a_full_disk_of_the_server_keeps_every_record_that_was_stored(small_disk: Path) -> None:
    with databases() as server:
        url = server.fresh()
        name = url.partition("@/")[2].partition("?")[0]
        with ExitStack() as stack:
            server.sql(server.url("postgres"), f"CREATE TABLESPACE small LOCATION '{small_disk}'")
            server.sql(server.url("postgres"), f"ALTER DATABASE {name} SET TABLESPACE small")
            store = open_store(url)
            stack.callback(store.close)
            stored = 0
            with pytest.raises(RecordsUnusable, match="No space left on device.*out of space"):
                for start in range(1, 200_000, 500):
                    stored += store.append([record(m) for m in range(start, start + 500)])
            assert stored and sum(1 for _ in store.records()) == stored and store.check() == ()
