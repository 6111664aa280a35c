{{ config(materialized='table') }}

select region, count(*) as orders, sum(amount) as revenue
from {{ ref('orders') }}
where status = 'paid'
group by region
