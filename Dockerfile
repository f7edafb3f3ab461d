# The service in an image of its own: pinned by hash, without build tools, not as root.
FROM python:3.12-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /venv
COPY requirements.txt .
RUN /venv/bin/pip install --require-hashes -r requirements.txt

FROM python:3.12-slim
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/earlybyte earlybyte
COPY --from=build /venv /venv
# Run from the source as it is, so that no build backend is needed: app/ and migrations/ stay side by side.
COPY LICENSE pyproject.toml README.md /opt/earlybyte/
COPY migrations /opt/earlybyte/migrations
COPY app /opt/earlybyte/app
ENV PATH=/venv/bin:$PATH PYTHONPATH=/opt/earlybyte PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER earlybyte
# The SQLite file, if that is the store; relative paths of the configuration count from here.
WORKDIR /var/lib/earlybyte
VOLUME /var/lib/earlybyte
EXPOSE 8000
# Of the container, not of the loopback: needs a key, made with `key create`, before it starts (see docker-compose.yml).
ENV EARLYBYTE_SERVER__HOST=0.0.0.0
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
# The exec form: signals reach the service itself, and it drains.
ENTRYPOINT ["python", "-m", "app"]
CMD ["serve"]
