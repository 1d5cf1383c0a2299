# Two images from one file:  docker build --target service .   and   docker build --target agent .
# The service's image holds no torch; the agent's holds no Django.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE} AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/venv/bin:$PATH
# The root file system is read-only in docker-compose.yml; the fonts' cache goes where there is a tmpfs.
ENV XDG_CACHE_HOME=/tmp/cache
RUN useradd --system --create-home --uid 10001 yoco
WORKDIR /app

FROM base AS service-packages
COPY requirements/service.lock requirements/
RUN python -m venv /venv && /venv/bin/pip install --require-hashes --requirement requirements/service.lock

FROM base AS service
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libpangoft2-1.0-0 libharfbuzz-subset0 fonts-dejavu-core \
    && rm -rf /var/lib/apt/lists/*
COPY --from=service-packages /venv /venv
COPY manage.py ./
COPY yoco yoco
COPY templates templates
COPY static static
COPY locale locale
RUN pybabel --quiet compile --domain django --directory locale && python manage.py collectstatic --no-input
USER yoco
EXPOSE 8000
CMD ["gunicorn", "yoco.wsgi:application", "--bind=0.0.0.0:8000"]

FROM base AS agent-packages
COPY requirements/agent.txt requirements/
RUN python -m venv /venv && /venv/bin/pip install --requirement requirements/agent.txt

FROM base AS agent
COPY --from=agent-packages /venv /venv
COPY agent agent
USER yoco
CMD ["python", "-c", "import agent, torch; print(agent.__file__, torch.__version__)"]
