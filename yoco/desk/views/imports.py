"""Operators' records as incidents: upload, preview, confirm."""

import uuid

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from yoco.core.downloads import attachment
from yoco.core.problem import DomainError
from yoco.desk.access import account_manager, desk
from yoco.desk.forms import UploadForm
from yoco.desk.views.contracts import contract_in_url
from yoco.guarantee.models import ImportFile
from yoco.guarantee.uploads import (
    import_file_confirm,
    import_file_discard,
    import_file_keep,
    import_file_preview,
    import_file_rejects,
)

RECENT = 20


def import_file_in_url(file_id: uuid.UUID) -> ImportFile:
    """Account managers see every upload; views call it behind `desk`."""
    files = ImportFile.objects.select_related("contract__organisation", "uploaded_by", "imported_by")
    return get_object_or_404(files, pk=file_id)


@require_http_methods(["GET", "POST"])
@desk
def upload(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """Keeps a file and goes on to its preview; nothing is imported yet."""
    contract = contract_in_url(contract_id)
    form = UploadForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        options = dict(form.cleaned_data)
        file = options.pop("file")
        try:
            kept = import_file_keep(
                contract=contract,
                name=file.name,
                content=file.read(),
                options=options,
                actor=account_manager(request),
            )
        except DomainError as error:
            form.add_error(None, error.message)
        else:
            return redirect("desk:import_file", kept.pk)
    files = ImportFile.objects.filter(contract=contract).defer("content").select_related("uploaded_by", "imported_by")
    context = {"contract": contract, "form": form, "files": files[:RECENT]}
    return render(request, "desk/import.html", context)


@require_http_methods(["GET", "POST"])
@desk
def import_file(request: HttpRequest, file_id: uuid.UUID) -> HttpResponse:
    """GET shows what an import of the kept bytes would do, or what it did; POST does it, or forgets the file."""
    file, actor = import_file_in_url(file_id), account_manager(request)
    refused = ""
    if request.method == "POST":
        try:
            if request.POST.get("decision") == "discard":
                import_file_discard(file=file, actor=actor)
                messages.success(request, _("The file is forgotten; nothing was imported."))
                return redirect("desk:import", file.contract_id)
            import_file_confirm(file=file, actor=actor)
        except DomainError as error:
            refused = error.message
        else:
            messages.success(request, _("The file is imported."))
            return redirect("desk:import_file", file.pk)
    preview = None
    if not refused and file.imported_at is None:
        try:
            preview = import_file_preview(file=file)
        except DomainError as error:
            refused = error.message
    context = {
        "contract": file.contract,
        "file": file,
        "preview": preview,
        "counted": sorted(preview.outcome.counted.items()) if preview else [],
        "refused": refused,
    }
    return render(request, "desk/import_file.html", context, status=409 if refused else 200)


@require_GET
@desk
def import_rejects(request: HttpRequest, file_id: uuid.UUID) -> HttpResponse:
    """The lines that cannot be read, with number and reason."""
    file = import_file_in_url(file_id)
    response = HttpResponse(import_file_rejects(file=file), content_type="text/csv; charset=utf-8")
    return attachment(response, file.contract.number, file.sha256[:12], "rejects.csv")
