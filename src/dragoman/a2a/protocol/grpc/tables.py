"""What A2A says on gRPC, as tables: each message's fields, the enums, each service's methods.

They say what specification/a2a.proto says at v1.0.1 (package lf.a2a.v1), and 0.3's (package a2a.v1)
with the fields that its SDKs added to it. What is made of a row, and how: `grpc_types`.

A field is `name:type=number`; without a type it is a string. Before the name: `*` many of them, `?`
told from its default, `|` one of the message's alternatives, `%` a map from strings. After the
number, `@name` is what JSON calls it where that does not follow from its name.
"""

from __future__ import annotations

from typing import NamedTuple

from dragoman.a2a.protocol.dialects import operations

V10 = "lf.a2a.v1"
V03 = "a2a.v1"
RPC = "google.rpc"


class GrpcMethod(NamedTuple):
    op: str
    asks: str
    answers: str


SERVICE = "A2AService"
METHODS_10 = {
    "SendMessage": GrpcMethod(operations.SEND, "SendMessageRequest", "SendMessageResponse"),
    "SendStreamingMessage": GrpcMethod(operations.STREAM, "SendMessageRequest", "StreamResponse"),
    "GetTask": GrpcMethod(operations.GET, "GetTaskRequest", "Task"),
    "ListTasks": GrpcMethod(operations.LIST, "ListTasksRequest", "ListTasksResponse"),
    "CancelTask": GrpcMethod(operations.CANCEL, "CancelTaskRequest", "Task"),
    "SubscribeToTask": GrpcMethod(operations.SUBSCRIBE, "SubscribeToTaskRequest", "StreamResponse"),
    "CreateTaskPushNotificationConfig": GrpcMethod(
        operations.PUSH_SET, "TaskPushNotificationConfig", "TaskPushNotificationConfig"
    ),
    "GetTaskPushNotificationConfig": GrpcMethod(
        operations.PUSH_GET, "GetTaskPushNotificationConfigRequest", "TaskPushNotificationConfig"
    ),
    "ListTaskPushNotificationConfigs": GrpcMethod(
        operations.PUSH_LIST,
        "ListTaskPushNotificationConfigsRequest",
        "ListTaskPushNotificationConfigsResponse",
    ),
    "DeleteTaskPushNotificationConfig": GrpcMethod(
        operations.PUSH_DELETE, "DeleteTaskPushNotificationConfigRequest", "Empty"
    ),
    "GetExtendedAgentCard": GrpcMethod(operations.CARD, "GetExtendedAgentCardRequest", "AgentCard"),
}
METHODS_03 = {
    "SendMessage": GrpcMethod(operations.SEND, "SendMessageRequest", "SendMessageResponse"),
    "SendStreamingMessage": GrpcMethod(operations.STREAM, "SendMessageRequest", "StreamResponse"),
    "GetTask": GrpcMethod(operations.GET, "GetTaskRequest", "Task"),
    "CancelTask": GrpcMethod(operations.CANCEL, "CancelTaskRequest", "Task"),
    "TaskSubscription": GrpcMethod(
        operations.SUBSCRIBE, "TaskSubscriptionRequest", "StreamResponse"
    ),
    "CreateTaskPushNotificationConfig": GrpcMethod(
        operations.PUSH_SET, "CreateTaskPushNotificationConfigRequest", "TaskPushNotificationConfig"
    ),
    "GetTaskPushNotificationConfig": GrpcMethod(
        operations.PUSH_GET, "GetTaskPushNotificationConfigRequest", "TaskPushNotificationConfig"
    ),
    "ListTaskPushNotificationConfig": GrpcMethod(
        operations.PUSH_LIST,
        "ListTaskPushNotificationConfigRequest",
        "ListTaskPushNotificationConfigResponse",
    ),
    "DeleteTaskPushNotificationConfig": GrpcMethod(
        operations.PUSH_DELETE, "DeleteTaskPushNotificationConfigRequest", "Empty"
    ),
    "GetAgentCard": GrpcMethod(operations.CARD, "GetAgentCardRequest", "AgentCard"),
}

COMMON = {
    "StringList": "*list=1",
    "SecurityScheme": "|api_key_security_scheme:APIKeySecurityScheme=1"
    " |http_auth_security_scheme:HTTPAuthSecurityScheme=2"
    " |oauth2_security_scheme:OAuth2SecurityScheme=3"
    " |open_id_connect_security_scheme:OpenIdConnectSecurityScheme=4"
    " |mtls_security_scheme:MutualTlsSecurityScheme=5",
    "APIKeySecurityScheme": "description=1 location=2 name=3",
    "HTTPAuthSecurityScheme": "description=1 scheme=2 bearer_format=3",
    "OAuth2SecurityScheme": "description=1 flows:OAuthFlows=2 oauth2_metadata_url=3",
    "OpenIdConnectSecurityScheme": "description=1 open_id_connect_url=2",
    "MutualTlsSecurityScheme": "description=1",
    "ClientCredentialsOAuthFlow": "token_url=1 refresh_url=2 %scopes=3",
    "ImplicitOAuthFlow": "authorization_url=1 refresh_url=2 %scopes=3",
    "PasswordOAuthFlow": "token_url=1 refresh_url=2 %scopes=3",
    "AgentCardSignature": "protected=1 signature=2 header:Struct=3",
    "AgentExtension": "uri=1 description=2 required:bool=3 params:Struct=4",
    "AgentProvider": "url=1 organization=2",
}

MESSAGES_10 = COMMON | {
    # what is worked on
    "Task": "id=1 context_id=2 status:TaskStatus=3 *artifacts:Artifact=4 *history:Message=5"
    " metadata:Struct=6",
    "TaskStatus": "state:TaskState=1 message:Message=2 timestamp:Timestamp=3",
    "Part": "|text=1 |raw:bytes=2 |url=3 |data:Value=4 metadata:Struct=5 filename=6 media_type=7",
    "Message": "message_id=1 context_id=2 task_id=3 role:Role=4 *parts:Part=5 metadata:Struct=6"
    " *extensions=7 *reference_task_ids=8",
    "Artifact": "artifact_id=1 name=2 description=3 *parts:Part=4 metadata:Struct=5 *extensions=6",
    "TaskStatusUpdateEvent": "task_id=1 context_id=2 status:TaskStatus=3 metadata:Struct=4",
    "TaskArtifactUpdateEvent": "task_id=1 context_id=2 artifact:Artifact=3 append:bool=4"
    " last_chunk:bool=5 metadata:Struct=6",
    "AuthenticationInfo": "scheme=1 credentials=2",
    "TaskPushNotificationConfig": "tenant=1 id=2 task_id=3 url=4 token=5"
    " authentication:AuthenticationInfo=6",
    # the card
    "AgentInterface": "url=1 protocol_binding=2 tenant=3 protocol_version=4",
    "AgentCard": "name=1 description=2 *supported_interfaces:AgentInterface=3"
    " provider:AgentProvider=4 version=5 ?documentation_url=6 capabilities:AgentCapabilities=7"
    " %security_schemes:SecurityScheme=8 *security_requirements:SecurityRequirement=9"
    " *default_input_modes=10 *default_output_modes=11 *skills:AgentSkill=12"
    " *signatures:AgentCardSignature=13 ?icon_url=14",
    "AgentCapabilities": "?streaming:bool=1 ?push_notifications:bool=2"
    " *extensions:AgentExtension=3 ?extended_agent_card:bool=4",
    "AgentSkill": "id=1 name=2 description=3 *tags=4 *examples=5 *input_modes=6 *output_modes=7"
    " *security_requirements:SecurityRequirement=8",
    "SecurityRequirement": "%schemes:StringList=1",
    "OAuthFlows": "|authorization_code:AuthorizationCodeOAuthFlow=1"
    " |client_credentials:ClientCredentialsOAuthFlow=2 |implicit:ImplicitOAuthFlow=3"
    " |password:PasswordOAuthFlow=4 |device_code:DeviceCodeOAuthFlow=5",
    "AuthorizationCodeOAuthFlow": "authorization_url=1 token_url=2 refresh_url=3 %scopes=4"
    " pkce_required:bool=5",
    "DeviceCodeOAuthFlow": "device_authorization_url=1 token_url=2 refresh_url=3 %scopes=4",
    # what is asked and answered
    "SendMessageConfiguration": "*accepted_output_modes=1"
    " task_push_notification_config:TaskPushNotificationConfig=2 ?history_length:int32=3"
    " return_immediately:bool=4",
    "SendMessageRequest": "tenant=1 message:Message=2 configuration:SendMessageConfiguration=3"
    " metadata:Struct=4",
    "GetTaskRequest": "tenant=1 id=2 ?history_length:int32=3",
    "ListTasksRequest": "tenant=1 context_id=2 status:TaskState=3 ?page_size:int32=4 page_token=5"
    " ?history_length:int32=6 status_timestamp_after:Timestamp=7 ?include_artifacts:bool=8",
    "ListTasksResponse": "*tasks:Task=1 next_page_token=2 page_size:int32=3 total_size:int32=4",
    "CancelTaskRequest": "tenant=1 id=2 metadata:Struct=3",
    "SubscribeToTaskRequest": "tenant=1 id=2",
    "GetTaskPushNotificationConfigRequest": "tenant=1 task_id=2 id=3",
    "DeleteTaskPushNotificationConfigRequest": "tenant=1 task_id=2 id=3",
    "ListTaskPushNotificationConfigsRequest": "task_id=1 page_size:int32=2 page_token=3 tenant=4",
    "ListTaskPushNotificationConfigsResponse": "*configs:TaskPushNotificationConfig=1"
    " next_page_token=2",
    "GetExtendedAgentCardRequest": "tenant=1",
    "SendMessageResponse": "|task:Task=1 |message:Message=2",
    "StreamResponse": "|task:Task=1 |message:Message=2 |status_update:TaskStatusUpdateEvent=3"
    " |artifact_update:TaskArtifactUpdateEvent=4",
    "Empty": "",  # google.protobuf.Empty, which is no bytes under any name
}

MESSAGES_03 = COMMON | {
    # what is worked on
    "Task": "id=1 context_id=2 status:TaskStatus=3 *artifacts:Artifact=4 *history:Message=5"
    " metadata:Struct=6",
    "TaskStatus": "state:TaskState=1 update:Message=2@message timestamp:Timestamp=3",
    "Part": "|text=1 |file:FilePart=2 |data:DataPart=3 metadata:Struct=4",
    "FilePart": "|file_with_uri=1 |file_with_bytes:bytes=2 mime_type=3 name=4",
    "DataPart": "data:Struct=1",
    "Message": "message_id=1 context_id=2 task_id=3 role:Role=4 *content:Part=5 metadata:Struct=6"
    " *extensions=7",
    "Artifact": "artifact_id=1 name=3 description=4 *parts:Part=5 metadata:Struct=6 *extensions=7",
    "TaskStatusUpdateEvent": "task_id=1 context_id=2 status:TaskStatus=3 final:bool=4"
    " metadata:Struct=5",
    "TaskArtifactUpdateEvent": "task_id=1 context_id=2 artifact:Artifact=3 append:bool=4"
    " last_chunk:bool=5 metadata:Struct=6",
    "PushNotificationConfig": "id=1 url=2 token=3 authentication:AuthenticationInfo=4",
    "AuthenticationInfo": "*schemes=1 credentials=2",
    "TaskPushNotificationConfig": "name=1 push_notification_config:PushNotificationConfig=2",
    # the card
    "AgentInterface": "url=1 transport=2",
    "AgentCard": "name=1 description=2 url=3 provider:AgentProvider=4 version=5"
    " documentation_url=6 capabilities:AgentCapabilities=7 %security_schemes:SecurityScheme=8"
    " *security:Security=9 *default_input_modes=10 *default_output_modes=11 *skills:AgentSkill=12"
    " supports_authenticated_extended_card:bool=13 preferred_transport=14"
    " *additional_interfaces:AgentInterface=15 protocol_version=16"
    " *signatures:AgentCardSignature=17 icon_url=18",
    "AgentCapabilities": "streaming:bool=1 push_notifications:bool=2 *extensions:AgentExtension=3",
    "AgentSkill": "id=1 name=2 description=3 *tags=4 *examples=5 *input_modes=6 *output_modes=7"
    " *security:Security=8",
    "Security": "%schemes:StringList=1",
    "OAuthFlows": "|authorization_code:AuthorizationCodeOAuthFlow=1"
    " |client_credentials:ClientCredentialsOAuthFlow=2 |implicit:ImplicitOAuthFlow=3"
    " |password:PasswordOAuthFlow=4",
    "AuthorizationCodeOAuthFlow": "authorization_url=1 token_url=2 refresh_url=3 %scopes=4",
    # what is asked and answered
    "SendMessageConfiguration": "*accepted_output_modes=1"
    " push_notification:PushNotificationConfig=2 history_length:int32=3 blocking:bool=4",
    "SendMessageRequest": "request:Message=1@message configuration:SendMessageConfiguration=2"
    " metadata:Struct=3",
    "GetTaskRequest": "name=1 history_length:int32=2",
    "CancelTaskRequest": "name=1",
    "TaskSubscriptionRequest": "name=1",
    "CreateTaskPushNotificationConfigRequest": "parent=1 config_id=2"
    " config:TaskPushNotificationConfig=3",
    "GetTaskPushNotificationConfigRequest": "name=1",
    "DeleteTaskPushNotificationConfigRequest": "name=1",
    "ListTaskPushNotificationConfigRequest": "parent=1 page_size:int32=2 page_token=3",
    "ListTaskPushNotificationConfigResponse": "*configs:TaskPushNotificationConfig=1"
    " next_page_token=2",
    "GetAgentCardRequest": "",
    "SendMessageResponse": "|task:Task=1 |msg:Message=2@message",
    "StreamResponse": "|task:Task=1 |msg:Message=2@message"
    " |status_update:TaskStatusUpdateEvent=3 |artifact_update:TaskArtifactUpdateEvent=4",
    "Empty": "",
}

MESSAGES_RPC = {
    "Status": "code:int32=1 message=2 *details:Packed=3",
    "Packed": "type_url=1 value:bytes=2",  # google.protobuf.Any, which JSON would unpack
    "ErrorInfo": "reason=1 domain=2 %metadata=3",
    "BadRequest": "*field_violations:FieldViolation=1",
    "FieldViolation": "field=1 description=2",
}

_ROLES = ("ROLE_", "UNSPECIFIED USER AGENT")
_STATES = "UNSPECIFIED SUBMITTED WORKING COMPLETED FAILED {} INPUT_REQUIRED REJECTED AUTH_REQUIRED"
ENUMS_10 = {"Role": _ROLES, "TaskState": ("TASK_STATE_", _STATES.format("CANCELED"))}
ENUMS_03 = {"Role": _ROLES, "TaskState": ("TASK_STATE_", _STATES.format("CANCELLED"))}
