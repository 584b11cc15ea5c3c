# SPDX-License-Identifier: Apache-2.0
"""Chat templates of the usual shapes, written for the tests."""

CHATML_DEFAULT = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a test.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

GEMMA = """{{ bos_token }}
{%- set start = 1 if messages[0]['role'] == 'system' else 0 -%}
{%- set head = messages[0]['content'] + '\n\n' if start else '' -%}
{%- for m in messages[start:] -%}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('user and assistant must take turns') }}
    {%- endif -%}
    {{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}
    {%- if loop.first %}{{ head }}{% endif -%}
    {{ m['content'] | trim }}
    {{- '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif -%}
"""

LLAMA3 = """{{- bos_token }}
{%- set date = '26 Jul 2024' %}
{%- if strftime_now is defined %}
    {%- set date = strftime_now('%d %b %Y') %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set words = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set words = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + date + '\n\n' + words + '<|eot_id|>' }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
