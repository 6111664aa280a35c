{#
  The materialization "intarsia" for dbt-duckdb: the rows of a model are merged into a Parquet dataset, and a view reads it.
  Written by `python -m intarsia.integrations.dbt`; the plugin of the same name in profiles.yml does the work.
#}

{% materialization intarsia, adapter='duckdb', supported_languages=['sql', 'python'] %}
  {%- set target = this.incorporate(type='view') -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- set run = {'model': config, 'incremental': is_incremental()} -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}

  {#- The plugin names a temporary file in run.staged, and when it is called again merges its rows. -#}
  {% do intarsia_store(this, run) %}
  {% if model['language'] == 'python' %}
    {%- set rows = make_intermediate_relation(this.incorporate(type='table'), suffix='__dbt_tmp') -%}
    {% do drop_relation_if_exists(load_cached_relation(rows)) %}
    {% call statement('create_rows', language='python') -%}
      {{ create_table_as(False, rows, compiled_code, 'python') }}
    {%- endcall %}
    {% call statement('stage_rows') -%}
      copy {{ rows }} to '{{ run.staged }}' (format parquet)
    {%- endcall %}
    {% do adapter.drop_relation(rows) %}
  {% else %}
    {% if config.get('contract').enforced %}{% do get_assert_columns_equivalent(compiled_code) %}{% endif %}
    {% call statement('stage_rows') -%}
      copy ({{ compiled_code }}
      ) to '{{ run.staged }}' (format parquet)
    {%- endcall %}
  {% endif %}
  {% do intarsia_store(this, run) %}

  {% if existing is not none and not existing.is_view %}{% do adapter.drop_relation(existing) %}{% endif %}
  {% call statement('create_view') -%}
    create or replace view {{ target }} as ({{ run.query }})
  {%- endcall %}
  {% do store_raw_result('main', message=run.message, code='intarsia', rows_affected=run.rows) %}

  {% do persist_docs(target, model) %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {% do adapter.commit() %}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({'relations': [target]}) }}
{% endmaterialization %}


{#- dbt's own looks for a table in DuckDB; here it is the dataset that there is or is not. -#}
{% macro is_incremental() %}
  {% if model.config.materialized != 'intarsia' %}{{ return(dbt.is_incremental()) }}{% endif %}
  {% if not execute or should_full_refresh() %}{{ return(False) }}{% endif %}
  {{ return(intarsia_has_files(intarsia_location(this, config))) }}
{% endmacro %}


{#- For on-run-start: views of models that other runs have made, where the database is in memory. -#}
{% macro register_intarsia_models() %}
  {% if execute %}
    {% for node in graph.nodes.values() if node.config.materialized == 'intarsia' %}
      {%- set relation = api.Relation.create(database=node.database, schema=node.schema, identifier=node.alias, type='view') -%}
      {% if intarsia_has_files(intarsia_location(relation, node.config)) %}
        {%- set run = {'model': node.config, 'register': True} -%}
        {% do intarsia_store(relation, run) %}
        {% do run_query('create schema if not exists ' ~ relation.without_identifier()) %}
        {% do run_query('create or replace view ' ~ relation ~ ' as (' ~ run.query ~ ')') %}
      {% endif %}
    {% endfor %}
    {% do adapter.commit() %}
  {% endif %}
{% endmacro %}


{% macro intarsia_location(relation, config) %}
  {{ return(render(config.get('location', adapter.external_root() ~ '/' ~ relation.identifier))) }}
{% endmacro %}


{% macro intarsia_has_files(location) %}
  {%- set pattern = (location ~ '/**/*.parquet') | replace("'", "''") -%}
  {{ return(run_query("select count(*) from glob('" ~ pattern ~ "')")[0][0] > 0) }}
{% endmacro %}


{% macro intarsia_store(relation, run) %}
  {% do adapter.store_relation(run.model.get('plugin', 'intarsia'), relation, [], intarsia_location(relation, run.model), 'parquet', run) %}
{% endmacro %}
