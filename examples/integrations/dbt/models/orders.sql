{{ config(materialized='intarsia', unique_key='order_id', partition_by='region') }}

select order_id, region, status, amount, changed_at
from read_csv('{{ var("feed") }}')
{% if is_incremental() %}
where changed_at > (select max(changed_at) from {{ this }})
{% endif %}
